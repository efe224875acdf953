"""Tests, one package a kind."""
