# placeholder, written by the project helper
