"""When results leave, and as what: once, refined, or as changes."""
