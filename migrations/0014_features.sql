-- What a route lets through under a budget of money, and how a connection's provider bounds its output.

-- Names of request features that cost more than their tokens and are allowed all the same.
ALTER TABLE routes ADD COLUMN allowed_features text[] NOT NULL DEFAULT '{}';

-- Null: as usual for the provider type. 'none': it cannot, so calls whose bounds must be kept are refused.
ALTER TABLE model_connections ADD COLUMN output_field text
    CHECK (output_field IN ('max_tokens', 'max_completion_tokens', 'none'));
