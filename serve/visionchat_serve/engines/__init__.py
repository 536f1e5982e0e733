"""Engines turn a chat about pictures into text. One protocol (`protocol`), one engine per module."""
