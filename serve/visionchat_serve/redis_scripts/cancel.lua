-- Stop a job for all who wait for it. ARGV: policy, id
sweep()
return stop(ARGV[2])
