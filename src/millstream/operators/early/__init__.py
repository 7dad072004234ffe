"""Windows over the whole input that also say what every block of it brought, for early answers."""
