"""The pages of docs/reference/, one module each: a function `page` that reads the code and returns Markdown."""
