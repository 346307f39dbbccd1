"""A long run in which much goes wrong at once: what well-behaved gateways lose by it must be nothing.

- `__main__`: who takes part, what is measured, and when is the run a failure?
- `gateways`: who are the well-behaved, and how is a pick timed?
- `timeline`: what did slow picks wait for?
- `hostile`: what do clients do that mean harm?
- `beat`: how are the turns of the event loop measured?
- `moody`: how does a plugin behave that fails and blocks now and then?
"""
