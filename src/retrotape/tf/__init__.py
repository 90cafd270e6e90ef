"""Everything private of TensorFlow and Keras: hooks, functions, variables, versions. No other folder touches it."""
