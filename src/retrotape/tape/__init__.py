"""The tapes that a user holds (live, loaded, joined, isolated), and functions over several of them."""
