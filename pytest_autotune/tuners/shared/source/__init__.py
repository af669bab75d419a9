"""Source: what the text of a function says, and what identifies it."""
