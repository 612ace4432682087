"""Measurements that `mdl bench` prints."""
