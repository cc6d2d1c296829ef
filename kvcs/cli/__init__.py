"""The commands kvcs-pub, kvcs-sub and kvcs-keygen."""
