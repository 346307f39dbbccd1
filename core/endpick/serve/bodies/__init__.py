"""Large request bodies: parsed in a helper process, so that the event loop never stands still for one.

- `reader`: who parses a large body, in which order, and what becomes of those that cannot be parsed? Start here: `LargeBodies`.
- `outcomes`: what can come of a large body, and what are client and operator told?
- `queue`: which body is next?
- `helper`: how is the helper process started, asked and ended?
- `wire`: what do the two processes say to each other?
- `layout`: how do prompts with media travel?
- `child`: what does the helper process do? Run by `helper`.
- `double`: how does the helper process come to a parser like that of `endpick serve`, and what does that parser log and count there?
"""
