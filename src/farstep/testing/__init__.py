"""Public kit for tests of farstep and of what is built on it: stand-ins that need no network and no clock."""
