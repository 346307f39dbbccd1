"""Discovery: which endpoints are there?

- `static_discovery`: `static-discovery`: which endpoints does the configuration list?
- `dns_discovery`: `dns-discovery`: which addresses does a name have now?
- `dns_client`: what do name servers say of a name?
- `dns_messages`: how are their questions and answers written?
- `file_discovery`: `file-discovery`: which endpoints does a file list, now that it has changed?
- `clusters`: `multicluster-file-discovery`: which clusters does a file list, and where do their pickers show their metrics?
- `endpoint_file`: what does a file of endpoints say, and what is wrong with it?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
