"""All uses of private TensorFlow and Keras APIs: hooks, functions, variables, versions. No other folder has any."""
