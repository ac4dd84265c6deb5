"""Replication rules: how several pipelines that train one network keep their copies alike."""
