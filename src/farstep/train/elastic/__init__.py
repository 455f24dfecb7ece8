"""The elastic trainer: transactional steps over a changing set of replica groups."""
