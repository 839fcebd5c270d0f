"""Grammars compiled for a model's vocabulary, and followed token by token. Knows one grammar library and no device."""
