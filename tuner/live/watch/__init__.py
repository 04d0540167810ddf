"""A live server held against its profile, window by window. Pure, but for the scraper."""
