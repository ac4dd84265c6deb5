"""Where ranks of several hosts meet: a store on one address, for those alone who prove that they have its secret."""
