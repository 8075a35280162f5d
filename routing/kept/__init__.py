"""What is kept for those who come later: the last message of a topic, and wills."""
