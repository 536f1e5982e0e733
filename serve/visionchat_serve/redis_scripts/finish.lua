-- End a job. ARGV: group, result_ttl, entry, attempt, finish
if lease_state(ARGV[4]) ~= 'lost' then
  end_job(ARGV[3], ARGV[4], ARGV[5])
  redis.call('HSET', JOB, 'ended_by', ARGV[4])
  return 1
end
return redis.call('HGET', JOB, 'ended_by') == ARGV[4] and 1 or 0 -- told twice after a lost reply
