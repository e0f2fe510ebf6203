-- What a route lets through under a budget of money, and how a connection's provider bounds its output.

-- Names of request features that cost more than their tokens and are allowed all the same.
ALTER TABLE routes ADD COLUMN allowed_features text[] NOT NULL DEFAULT '{}';

-- Null: as usual for the provider type. 'none': it cannot, so calls whose bounds must be kept are refused.
ALTER TABLE model_connections ADD COLUMN output_field text
    CHECK (output_field IN ('max_tokens', 'max_completion_tokens', 'none'));

-- Who a key is, as find_principal_v2, and whether it has a budget of money of its own.
CREATE FUNCTION find_principal_v3(p_key_hash bytea) RETURNS TABLE (
    api_key_id bigint, kind text, name text, owner_user_id bigint, owner_role text, owner_active boolean,
    project_id bigint, default_project_id bigint, scopes text[], allowed_routes text[], revoked boolean,
    expired boolean, expires_in_seconds bigint, granted_projects bigint[], has_limits boolean, has_cost_budget boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT p.*, k.kind = 'gateway' AND greatest(k.cost_per_day, k.cost_per_month) > 0
      FROM find_principal_v2(p_key_hash) p JOIN api_keys k ON k.id = p.api_key_id
$$;
