"""How the replicas of a model agree: who is asked when, and what is applied."""
