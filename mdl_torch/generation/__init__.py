"""Answers from language models: what is asked (``prompts``), and who answers (``local``, ``http``, ``scripted``)."""
