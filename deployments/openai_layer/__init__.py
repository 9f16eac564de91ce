"""Tokens to OpenAI answers, for engines that have no OpenAI layer of their own. Knows no engine and no Ray."""
