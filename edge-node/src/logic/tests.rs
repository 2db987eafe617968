mod stories;
