mod plans;
