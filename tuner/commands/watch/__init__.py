"""``tuner watch``: is it still kept by a live server?."""
