"""Plugins that do wrong: what they do (`misdeeds`), the plugins (`culprits`), and what a discovery reports (`finding`)."""
