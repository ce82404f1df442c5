"""What the recurrent placers of 2017 and 2018 share."""
