"""Projects for new plugins, made from the template in `plugin_template`."""
