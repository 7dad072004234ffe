"""What values of a group come to: partial states, merged, slid and taken back."""
