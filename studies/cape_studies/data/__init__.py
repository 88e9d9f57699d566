"""People's folders, read once: files, images, text."""
