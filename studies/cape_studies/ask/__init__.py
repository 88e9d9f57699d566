"""Studies of a user's own data: what the data hold, what a study costs, and its answer."""
