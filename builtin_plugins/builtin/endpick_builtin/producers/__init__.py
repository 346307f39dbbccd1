"""Data producers: plugins that attach data to a request before it is scheduled, such as its tokens, cached prefix or session."""
