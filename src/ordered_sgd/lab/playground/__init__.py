"""A local web page: SGD, ordered SGD and the random-q control train side by side on points in the plane."""
