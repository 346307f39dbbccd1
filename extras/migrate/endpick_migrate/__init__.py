"""Converts llm-d's arguments, Deployments and Helm values into endpick's."""
