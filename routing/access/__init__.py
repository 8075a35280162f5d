"""Who may do what: users, their passwords, and the rights that every door asks for."""
