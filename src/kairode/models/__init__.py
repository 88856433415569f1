"""What is believed: latent dynamics models, compositions of initial state, transition, decoder and timer."""
