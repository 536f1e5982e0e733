-- Stop a job: at once if nobody holds it, else by telling its replica. ARGV: policy, id
local id = ARGV[2]
sweep()
local status = get(id, 'status')
if not status or status == 'ended' then return 0 end
if is_held(id) then set(id, 'cancelled', 1) else end_job(id, POLICY.cancelled) end
return 1
