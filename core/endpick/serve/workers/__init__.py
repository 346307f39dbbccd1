"""`endpick serve --workers`: a supervisor and several pickers on the same ports."""
