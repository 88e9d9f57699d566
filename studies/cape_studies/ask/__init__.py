"""Studies of a user's own data: what they hold, what it will cost, what comes out of them."""
