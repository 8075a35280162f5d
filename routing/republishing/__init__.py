"""Messages that are published once more by the broker itself: dead, late, refused or wanted again."""
