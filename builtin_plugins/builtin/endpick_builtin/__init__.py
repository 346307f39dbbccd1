"""The plugins that come with endpick. The host loads them through entry points; they import `endpick.api` only."""
