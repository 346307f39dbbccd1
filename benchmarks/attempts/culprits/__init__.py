"""Plugins that do wrong: who is told what to do (`misdeeds`), what they throw, answer and do (`thrown`, `answered`, `done`), the plugins
(`culprits`), and what a discovery reports (`finding`).
"""
