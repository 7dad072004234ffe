"""Early answers: a flow that is looked at while it reads its input in random order."""
