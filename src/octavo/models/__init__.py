"""One file a family. Importing registry.family(...) loads only the file that is needed."""
