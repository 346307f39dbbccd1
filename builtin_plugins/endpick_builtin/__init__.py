"""The plugins that come with endpick; they reach the host through entry points, like everybody else's."""
