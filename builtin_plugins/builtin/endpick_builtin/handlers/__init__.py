"""Profile handlers: which scheduling profiles run, and what do their results mean?

- `single_profile`: which handlers run the only profile, and which of them sends requests to a sidecar for all ranks of a host?
- `header_profile`: `header-profile-handler`: which profile does a header ask for?
- `disaggregation`: `disagg-profile-handler`: which stages of a request run on which servers, and in which order?
- `deciders`: is a stage worth a server of its own?
- `pd`: what did configurations use before `disagg-profile-handler`?
- `outcome`: which destinations and headers do runs come to, and how are decisions counted?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
